"""A separate process for the policy, so that a slow, hanging or dead policy does not delay a batch.

``remote`` is the driver's side: a policy host with a watchdog that restarts the process. ``child`` is the driver's handle of
the process. ``served`` is the process's own side: the policy, its state and its random source. Both make the policy from a
``spec``, and talk over a ``wire``: a JSON document a line.
"""
