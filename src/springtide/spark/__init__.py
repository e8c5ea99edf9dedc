"""The data plane on Spark, and the only package that imports pyspark."""
