"""Other systems that the elastic core is compared with: the same work, each in separate processes."""
