"""State in shards: versioned by batch, durable before the batch commits, in files that any task can read.

segment    one immutable file: rows of state, sorted by the hash of their key, in chunks with checksums
catalog    which segments make up the state at a batch, newest first; part of the batch's manifest
lookup     the newest row of each key, over the segments
stepping   one task's part of a batch: records in, new state and output out
per_key    runs a user's processor, key by key
compact    many small segments into few, in the background
"""
