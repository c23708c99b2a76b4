"""Jobs: entry scripts for Glue, EMR Serverless, spark-submit and laptops, and their pure transforms."""
