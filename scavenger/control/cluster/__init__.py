"""Jobs as custom resources of Kubernetes: the operator, and the leader of each job."""
