"""What tools/kubernetes-e2e is made of."""
