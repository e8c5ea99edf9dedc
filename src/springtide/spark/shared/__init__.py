"""What the driver and the tasks both use: what travels between them, and how files are written. Imports neither side directly.

To read in this order.

    program     a topology compiled into levels: what runs in which stage
    stage_plan  the part of a plan that the tasks of a stage need
    shipping    what travels to the workers, pickled once
    blocks      what travels between tasks
    report      what a task reports to the driver
    receipt     the receipt of a staged file
    costs       what records cost, on its way from a task to the driver
    progress    the page on which a worker notes the record that it is at
    hashing     the seeds of keys' hashes
    durable     files that survive a crash
    remedies    the ways out that an error names
"""
