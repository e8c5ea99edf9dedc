"""What the driver and the tasks both use: what travels between them, and how files are written. Imports neither of them.

To read in this order.

    program   a topology compiled into levels: what runs in which stage
    shipping  what travels to the workers, pickled once
    blocks    what travels between tasks
    costs     what records cost, on its way from a task to the driver
    progress  the page on which a worker notes the record that it is at
    hashing   the seeds of keys' hashes
    durable   files that survive a crash
    remedies  the ways out that an error names
"""
