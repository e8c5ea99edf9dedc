"""Everything that relies on Spark's private parts, and the only package that reaches into the JVM.

A new version of Spark can break what is here, and nothing else. Each file says why Springtide needs it, with which versions of
Spark it was seen to work, and what happens where it is not there.

    internals   the JVM: starting it, the sink, the shuffles, the executors, the status of queries
    daemon      the parent of the Python workers, which imports what they need
    pool        workers that start before a plan wants them
    logs        the text of Spark's offset and commit logs
    properties  settings in a file that only this user can read
"""
