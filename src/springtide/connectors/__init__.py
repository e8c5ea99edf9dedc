"""Sources and sinks by the interfaces of ``model.source`` and ``model.publisher``; none of them knows Spark."""
