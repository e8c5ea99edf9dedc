"""Sharded state: versioned by batch, durable before the batch commits, in files that any task can read.

In tasks (these modules do not import ``driver``):
    stepping   one task's part of a batch: records in, new state and output out
    per_key    runs a user's processor, key by key
    lookup     looks up the newest row of each key in the segments
    segment    an immutable file: rows of state, sorted by the hash of their key, in chunks with checksums
    sound      remembers which chunks of a segment are verified on this node
    catalog    the segments that make up the state at a batch, newest first; part of the batch's manifest
    receipt    a task's report on state
    store      stores segments in a folder or at a URI
    cache      the node's cache of state at a URI
    compact    merges segments in the background

In the driver:
    declared   the declarations of a topology's stateful operators
    book       tracks the state that each batch starts from, the files that it writes, and obsolete files
    presence   checks at a start that the state files exist
    rehash     rehashes stored keys if the hash has changed

In the commands of ``springtide state``, without Spark:
    reading    reads the state in a checkpoint
    exporting  exports an operator's state to a file
    seeding    imports the initial state from a file
    piles      sorts rows into one segment
    origin     the records that exported state includes
    files      Parquet, JSON lines and CSV
    values     values of state as JSON and as text
"""
