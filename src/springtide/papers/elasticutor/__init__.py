"""Elasticutor's figures and tables, measured again, and the simulator of elastic executors that measures them.

To read in this order.

The simulator
    engine       elastic executors in numbers: shards on cores, cores on nodes
    state        where shards, cores and executors are
    moves        shards that change cores
    control      the balancer of each executor, and the scheduler of all
    history      the measurements of every step

The paper
    setup        its set-ups: the micro-benchmark and the stock exchange
    rows         rows of its figures and tables, and the claims that judge them
    micro        figures 6 to 12
    single       figures 13 to 16
    exchange     figure 19, tables 2 and 3
    experiments  all of them, by name
    plots        the figures as pictures
"""
