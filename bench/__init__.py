"""`make bench`: what Arkvory costs, as ratios to floors that are measured in the same run."""
