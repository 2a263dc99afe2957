"""Durable storage: names, slot log, manifests, the order of writes, and the collection of what is left over.

Nothing here knows Spark or the kernel; objects are bytes with a name.
"""
