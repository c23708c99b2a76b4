"""One file for each pipeline: it runs on Glue, on EMR Serverless, under spark-submit and on a laptop."""
