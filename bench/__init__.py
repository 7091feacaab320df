"""What Outlast costs, by scenario: `python -m bench`, or `make bench`. Figures to read, not tests: a busy machine must not fail a change.

    S1  one run, 1,000 steps one after the other
    S2  1,000 runs of ten steps, all at once
    S3  start a run of one step, and await its result
    S4  1,000 runs that wait for a message: what they cost while they wait, and how long until all have had it
    S5  1,000 runs whose process is killed in their seventh step of ten: how long until all are done
    S6  5,000 recorded steps, and a restart: how long until the next step
    S7  what a run of ten steps leaves behind: bytes, commits, syncs

Payloads are about 200 bytes of JSON, and steps only return them, so that what is measured is Outlast. Each outcome is durable before
its workflow goes on. Beside the scenarios stands the floor: single rows, each committed by itself, on the same disk and the same server.
"""
