"""How the processes of a job reach each other: sockets, authentication, heartbeats, shared memory, replication."""
