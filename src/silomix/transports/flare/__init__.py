"""Live federations on NVIDIA FLARE: separately started processes, mutual TLS between them.

The coordinator runs in FLARE's server as a `Controller`, a silo in FLARE's client as an `Executor`;
jobs refer only to these two classes of the installed package, so that no code travels. A silo's
table, policy, study and store are settings of its own kit: a job cannot set them.
"""
