"""Mirrors: a repository follows an upstream's list on a schedule.

    settings   what is followed, and how far that is: the row of a mirror
    guides     how the lists of a format are read
    rereading  what is asked for again only where it changed
    memory     how much of lists is in memory at once
    folders    the lists of folders
    arkvory    the list of another Arkvory, whatever the format
    lists      reads either, what is long in a process of its own (pages)
    worklist   what is to be done, a row for each list and file; so a run that broke off goes on where it was
    copying    how one file gets into a proxy: as for a client
    importing  how one gets into a hosted repository: published, by the rules of its format
    documents  what a run has read of its upstream a moment ago
    run        one run: lists and files, until nothing is left to do
    follower   which mirrors are due, each run by one process of the cluster
"""
