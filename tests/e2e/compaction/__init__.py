"""Compactions over the wire: real gateways that compact early, and a model that tells summaries apart."""
