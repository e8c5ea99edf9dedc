"""The code of a batch's tasks, which runs in Spark's Python workers. Nothing here imports ``driver``.

In reading order; ``spark/state`` has the tasks' part of stateful operators.

    entry      the function of tasks where rows of the JVM enter
    stage      the function of tasks behind a shuffle: blocks in, blocks out
    task       one task: records through its operators
    functions  applies users' functions to records, and catches what they raise
    outbox     routes the records that leave a task, and packs them into blocks
    account    counts the work of a task, for its report
    context    reads the job's local properties, which Spark and the driver set
    chunk      records as Python objects or as an Arrow batch, converted on demand
    created    creation times: sheds old records, and samples the others
    meter      measures the cost of each record
    letters    makes dead letters of failed records
    staging    writes files that the driver commits
    encoding   the formats of those files
    generate   generated streams: splits a batch into ranges, and makes the records in tasks
    rows       picks the rows for sql operators out of a stage's blocks
    merging    merges segments of state in the background
"""
