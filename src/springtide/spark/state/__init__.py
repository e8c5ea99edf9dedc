"""State in shards: versioned by batch, durable before the batch commits, in files that any task can read.

In tasks (and nothing of this imports ``driver``):
    stepping   one task's part of a batch: records in, new state and output out
    per_key    runs a user's processor, key by key
    lookup     the newest row of each key, over the segments
    segment    one immutable file: rows of state, sorted by the hash of their key, in chunks with checksums
    sound      which chunks of a segment were checked on this node
    catalog    which segments make up the state at a batch, newest first; part of the batch's manifest
    receipt    what a task reports of the state
    store      where segments lie: in a folder or at a URI
    cache      what a node has of state at a URI
    compact    many small segments into few, in the background

In the driver:
    declared   what the stateful operators of a topology declare
    book       what each batch begins with, what it leaves, and which files are no longer needed
    presence   whether the files of the state exist at a start
    rehash     hashes stored keys again where the hash has changed

In the commands of ``springtide state``, without Spark:
    reading    state as a checkpoint has it
    exporting  all keys of an operator in a file
    seeding    the state that the first batch begins with, from a file
    piles      rows in any order as one sorted segment
    origin     which records exported state has counted
    files      Parquet, JSON lines and CSV
    values     values of state as JSON and as text
"""
