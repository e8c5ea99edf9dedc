"""Policies in a process of their own, so that none of them, slow, hanging or dead, is in the way of a batch.

``remote`` is the driver's side: a policy like any other, with a watchdog that starts the process again. ``child`` is the
process as the driver holds it: asked, waited for, ended. ``served`` is the process's own side: the policy, its state and its
random source. Both make the policy from a ``spec``, and talk over a ``wire``: a JSON document a line.
"""
