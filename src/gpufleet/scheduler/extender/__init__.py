"""kube-scheduler's HTTP extender: its verbs, wire types and certificate, and how pods are tried again."""
