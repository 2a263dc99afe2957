"""The benchmark harness: one workload, several engines, each in processes of its own, compared in one run.

`workload` says what is computed on which data, `engines` how it is run, `child` is the process that runs one,
`runner` starts and watches it, `report` puts the figures together.
"""
