"""What runs in the driver: one process, which starts Spark, runs one batch after the other and commits each of them.

To read in this order.

The run
    plane        the data plane in batches: starts the query, sees why it ended, makes room for another one
    session      the Spark session and its settings
    java         finds a Java for it
    checks       refuses functions that cannot reach the workers
    modules      lets functions travel whose modules the workers lack
    sources      the streaming DataFrame that the query reads
    generated    the data source of a generated stream
    arrivals     how many records generated sources have
    last_batch   waits for the batch that runs when a query is to end, or gives it up

A batch
    batch        from a DataFrame to a commit: the exactly-once protocol on one screen
    pipeline     the batch as one Spark job, with the widths of the plan
    staged       staged files: checked, published, swept
    sinks        hands staged output to the sinks, before or after the commit
    closing      the batches at the end of a bounded run, which bring time to the last watermark

The checkpoint
    checkpoint   its folder, with all its parts
    lock         the lock by which it has one driver
    plan_files   plans/N.json holds from batch N on
    manifests    batch N is committed if and only if manifests/N.json exists
    begun        the note of the batch that began last
    editions     what groupings have learned
    documents    the names and shapes of the other documents
    fingerprint  what may not change in a topology between two runs
    room         whether the folders can be written, tried before Spark starts
    starting     gathers what the parts of a checkpoint say when a run starts
    agreement    decides what is refused and what is mended, in pure functions
    undo         takes back the last commit, if its output is damaged

Workers and executors
    workers      the Python workers, by their pages
    stalls       warns of a record that a batch is stuck at
    crashes      finds records that kill workers, and puts them aside
    clusters     the executors, behind one port for all cluster managers
"""
