"""Tiresias: its policy, the Gittins index, and an order of many jobs that is kept between decisions."""
