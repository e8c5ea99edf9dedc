"""PostgreSQL, over psycopg 3: a sink that is exactly once, and lookups of rows by key.

``connection`` opens connections and judges their errors, ``types`` maps schemas, ``lines`` encodes records for COPY in the
tasks, ``tables`` makes and compares tables, ``ledger`` has the batches that are written, ``publisher`` writes them,
``declared`` is the sink's declaration, ``lookup`` that of lookups. Nothing imports psycopg before it is needed.
"""
