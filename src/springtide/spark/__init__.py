"""The data plane on Spark, and, but for benchmarks, the only package that imports pyspark.

driver   the code of the driver: the batch protocol, the checkpoint, starts and ends, executors
task     the code of a batch's tasks, in Python workers
shared   the code of both: the compiled program, blocks, pages, durable files
state    the state of operators: segments for tasks, the book of them for the driver
private  everything that relies on Spark's private API and reaches into the JVM
attach   scaling of a query that is not Springtide's
launch   the script that ``springtide submit`` starts instead of the user's application
"""
