"""All code that relies on Spark's private API, and the only package that reaches into the JVM.

A new version of Spark can break this package, and nothing else. Each file says why Springtide needs the private API, with
which versions of Spark it was tested, and what happens without it.

    jvm          starts the JVM, checks whether it is alive, and forgets a dead one
    properties   settings for the JVM in a file that only this user can read
    local_files  Hadoop's local files without a process for each
    query        the sink of the query, and why a query ended
    stages       the stages of a batch as RDDs of blocks
    failures     why a query failed, by the texts of Spark's errors
    logs         the text of Spark's offset and commit logs
    executors    lists, requests, warms up and releases executors
    status       the progress and the jobs of a query that is not Springtide's
    daemon       the parent of the Python workers, which imports their modules
    pool         workers that start before a plan needs them
"""
