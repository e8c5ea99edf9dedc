"""Measurements of Springtide against hand-written Spark, side by side in one run."""
