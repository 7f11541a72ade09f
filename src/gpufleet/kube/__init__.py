"""The only code that speaks to a Kubernetes API: client, reflector, leases, leader election."""
