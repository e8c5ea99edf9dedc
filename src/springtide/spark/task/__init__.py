"""What runs in Spark's Python workers, in the tasks of a batch. Nothing here imports ``driver``.

To read in this order; ``spark/state`` has what stateful operators do in a task.

    worker    records through the operators of one stage, then blocks for the next
    chunk     records as Python objects or as an Arrow batch, whichever is wanted
    meter     what each record costs
    letters   what a dead letter says of a record that failed
    staging   files that tasks write and the driver commits
    encoding  the formats of those files
    generate  generated streams: the driver cuts a batch into ranges, tasks make the records
"""
