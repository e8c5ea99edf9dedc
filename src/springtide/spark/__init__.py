"""The data plane on Spark, and, but for benchmarks, the only package that imports pyspark."""
