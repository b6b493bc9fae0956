"""What the elastic core is compared with: the same work done by others, each in processes of its own."""
