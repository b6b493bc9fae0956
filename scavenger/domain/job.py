"""A job as its user describes it: the job file, validated.

Fields carry their unit last in the name where the job file's own word has none; durations are kept in seconds and
money in US dollars, whatever form the file wrote them in.
"""
