"""Which task has a shard: by what the shards cost, with as few moves as will do."""
