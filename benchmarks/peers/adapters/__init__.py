"""One adapter a system: the same operations for every queue, each in a process of its own.

shell.py      the operations and events of every Python adapter, and what an adapter implements
shell.mjs     the same for Node
river/        the same for Go
http.py       the keep-alive client that the Fencepost adapter sends its calls with
*_queue.*     one adapter each
"""
