"""Read whole topics as relations: ``scan`` for data frames, ``run_sql`` for queries that name topics."""
