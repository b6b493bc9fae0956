"""The dashboard: pages that the server renders, and the figures on them.

`job_list`, `job_page` and `other_pages` make the values of pages from the values of the store, `figures` the pictures;
`gather` reads the store and the journals; `pages` fills the templates; `routes` answers requests.
"""
