"""The data plane on Spark, and, but for benchmarks, the only package that imports pyspark.

driver   what runs in the driver: the batch protocol, the checkpoint, starts and ends, executors
task     what runs in the tasks of a batch, in Python workers
shared   what both use: the compiled program, blocks, pages, durable files
state    the state of operators: segments for tasks, the book of them for the driver
private  everything that relies on Spark's private parts and reaches into the JVM
attach   scaling of a query that is not Springtide's
launch   what ``springtide submit`` starts instead of the user's application
"""
