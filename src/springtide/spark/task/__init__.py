"""What runs in Spark's Python workers, in the tasks of a batch. Nothing here imports ``driver``.

To read in this order; ``spark/state`` has what stateful operators do in a task.

    entry      the function of tasks where rows of the JVM enter
    stage      the function of tasks behind a shuffle: blocks in, blocks out
    task       one task: records through its operators
    functions  applies users' functions to records, and catches what they raise
    outbox     what leaves a task: routes records, and makes blocks
    account    what the task has done so far, which becomes its report
    context    what Spark and the driver tell a task
    chunk      records as Python objects or as an Arrow batch, whichever is wanted
    created    creation times: sheds old records, and sums up the others
    meter      what each record costs
    letters    what a dead letter says of a record that failed
    staging    files that tasks write and the driver commits
    encoding   the formats of those files
    generate   generated streams: Spark asks it how to cut a batch into ranges, and tasks to make the records
    rows       rows for sql operators, out of a stage's blocks
    merging    merges segments of state, beside the batches
"""
