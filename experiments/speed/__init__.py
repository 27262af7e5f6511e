"""Side-by-side timings with peers, as ratios in one run."""
