"""The permissions that Scavenger needs at each cloud, as files to apply there; see docs/clouds.md.

`aws.json` is an IAM policy for who runs `scavenger`, `aws-vms.json` one for the role of an instance profile, and
`gcp.yaml` a custom role for who runs `scavenger`.
"""
