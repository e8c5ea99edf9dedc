"""Kafka as a source, over librdkafka: ``declared`` is the declaration, ``enumerator`` the driver's part, ``reader`` the tasks'.

``clients`` makes librdkafka's clients, ``cluster`` asks a cluster for topics and offsets, ``positions`` has the arithmetic of
offsets, ``values`` and its neighbours decode records. Nothing imports confluent-kafka before a client is made.
"""
