"""tools/bandwidth-study: methods of training compared on networks of limited rates."""
