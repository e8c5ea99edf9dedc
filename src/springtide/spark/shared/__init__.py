"""Code for the driver and the tasks: the data that travels between them, and durable files. Imports neither side directly.

To read in this order.

    program     a topology compiled into levels: the operators of each stage
    stage_plan  the part of a plan that the tasks of a stage need
    shipping    objects for the workers, pickled once
    blocks      the data that travels between tasks
    report      the report of a task to the driver
    receipt     the receipt of a staged file
    costs       the costs of records, on their way from a task to the driver
    progress    the page on which a worker notes its current record
    hashing     the seeds of keys' hashes
    durable     files that survive a crash
    remedies    the ways out that an error names
"""
