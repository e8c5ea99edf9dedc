"""What runs in the driver: one process, which starts Spark, runs one batch after the other and commits each of them.

To read in this order.

The run
    plane        the data plane in batches: starts the query, finds why it ended, cleans up for the next one
    session      the Spark session and its settings
    java         finds a Java for it
    checks       refuses functions that cannot reach the workers
    modules      ships functions by value whose modules the workers lack
    sources      the streaming DataFrame that the query reads
    generated    the data source of a generated stream
    arrivals     counts the records of generated sources
    last_batch   waits for the running batch when a query is to end, or gives it up

A batch
    batch        from a DataFrame to a commit: the exactly-once protocol on one screen
    pipeline     the batch as one Spark job, with the widths of the plan
    staged       staged files: checked, published, swept
    sinks        hands staged output to the sinks, before or after the commit
    closing      the batches at the end of a bounded run, which advance time to the last watermark

The checkpoint
    checkpoint   its folder, with all its parts
    lock         the lock that admits one driver
    plan_files   plans/N.json is valid from batch N on
    manifests    batch N is committed if and only if manifests/N.json exists
    begun        the note of the batch that began last
    editions     the knowledge of groupings
    documents    the names and shapes of the other documents
    fingerprint  the properties of a topology that may not change between two runs
    room         checks before Spark starts that the folders can be written
    starting     reads the parts of a checkpoint when a run starts
    agreement    decides what to refuse and what to mend, in pure functions
    undo         takes back the last commit, if its output is damaged

Workers and executors
    workers      the Python workers, by their pages
    stalls       warns of a record at which a batch is stuck
    crashes      finds the records that kill workers, and sets them aside
    clusters     the executors, behind one port for all cluster managers
"""
