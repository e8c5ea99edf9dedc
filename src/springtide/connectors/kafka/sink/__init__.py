"""Kafka as a sink: ``declared`` is the declaration, ``encoding`` the tasks' part, ``publisher`` the driver's.

Tasks stage the bytes of keys and values, so that the driver only hands them to librdkafka.
"""
