"""What tests/deploy/rehearsal_test.py is made of: a cluster's parts, in small."""
