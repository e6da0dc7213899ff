"""Links of a tar: hard and symbolic ones become members where their targets are.

A link has no bytes. Its target is a member of the archive, or another link. Names are
compared as `os.path.normpath` writes them; the target of a symbolic link is relative
to the link's folder. Of equal names a hard link leads to the last one before it, or
else to the last one of the archive; a symbolic link to the last one of the archive:
`tarfile` reads both so, but for a hard link to a later member, which it refuses.

A link that leads to a member is a member itself: it has its own name, the extent of
that member, and its own place in the order of the archive. One to its own name adds
nothing, as GNU tar writes for a file that is given twice. The others stay links.

All steps are linear in the bytes of the names.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fastshard._core.span cimport is_equal, span_of, span_t
from fastshard._core.table.extents cimport (
    MAX_ENTRIES, columns_add, columns_free, columns_t, name_at, resize, slot_entry,
    slots_find, slots_free, slots_init, slots_t,
)

cdef struct links_t:               # links of an archive, in its order
    columns_t names                # offsets: of headers; sizes: a tar_skipped_t
    columns_t targets              # names of targets; offsets: members before the link


cdef enum root_t:                  # of a link; from FIRST_ROOT on: a member's entry
    ROOT_UNKNOWN
    ROOT_VISITED                   # on the way from the link that is being followed
    ROOT_MISSING
    FIRST_ROOT

cdef struct path_t:                # a normalised name
    uint8_t *at                    # owned
    size_t size
    size_t capacity

cdef struct link_t:
    size_t target                  # an entry + 1; 0: not in the archive
    size_t same                    # the entry before it of its own name + 1, or 0
    size_t root                    # a root_t, or FIRST_ROOT + entry

cdef struct resolver_t:
    columns_t *members
    links_t *links
    size_t count                   # entries: members and links, in archive order
    columns_t paths                # normalised name of each entry; offset: a member, or
                                   # a link + the number of members
    link_t *followed               # one for each link
    slots_t by_path                # entries by `paths`; of equal ones the last
    path_t path                    # of the name or target at hand


cdef inline bint links_add(
    links_t *links, size_t before, uint64_t header, int kind, span_t name, span_t target
) noexcept nogil:
    """Append a link behind `before` members; False: out of memory."""
    return columns_add(&links.names, header, kind, name) and columns_add(
        &links.targets, before, 0, target
    )


cdef inline bint links_append(
    links_t *links, const links_t *more, size_t before
) noexcept nogil:
    """Append the links of a part of the archive that `before` members precede."""
    cdef size_t i
    for i in range(more.names.count):
        if not links_add(
            links, before + <size_t> more.targets.offsets[i], more.names.offsets[i],
            <int> more.names.sizes[i], name_at(&more.names, <uint32_t> i),
            name_at(&more.targets, <uint32_t> i),
        ):
            return False
    return True


cdef inline void links_free(links_t *links) noexcept nogil:
    columns_free(&links.names)
    columns_free(&links.targets)
    memset(links, 0, sizeof(links_t))


# Normalised names.

cdef inline bint ends_in_parent(const path_t *path) noexcept nogil:
    """Return whether the last part is ``..``."""
    cdef size_t size = path.size
    return (
        size >= 2 and path.at[size - 1] == c'.' and path.at[size - 2] == c'.'
        and (size == 2 or path.at[size - 3] == c'/')
    )


cdef inline void drop_part(path_t *path) noexcept nogil:
    """Drop the last part, and the slash before it unless it is the first byte."""
    while path.size > 0 and path.at[path.size - 1] != c'/':
        path.size -= 1
    if path.size > 1:
        path.size -= 1


cdef inline void add_part(path_t *path, span_t part) noexcept nogil:
    """Add the part between two slashes; the path has capacity for it."""
    cdef bint is_root = path.size == 1 and path.at[0] == c'/'
    if part.left == 0 or (part.left == 1 and part.at[0] == c'.'):
        return
    if part.left == 2 and part.at[0] == c'.' and part.at[1] == c'.':
        if is_root:
            return
        if path.size > 0 and not ends_in_parent(path):
            drop_part(path)
            return
    if path.size > 0 and not is_root:
        path.at[path.size] = c'/'
        path.size += 1
    memcpy(path.at + path.size, part.at, part.left)
    path.size += part.left


cdef inline void add_parts(path_t *path, span_t name) noexcept nogil:
    cdef size_t i
    cdef size_t start = 0
    for i in range(name.left):
        if name.at[i] == c'/':
            add_part(path, span_of(name.at + start, i - start))
            start = i + 1
    if name.left > start:
        add_part(path, span_of(name.at + start, name.left - start))


cdef inline bint set_path(path_t *path, span_t folder, span_t name) noexcept nogil:
    """Set to the normalised ``folder/name``; a name with a leading slash is whole."""
    cdef size_t wanted = folder.left + name.left + 2
    if wanted > path.capacity:
        if not resize(<void **> &path.at, 2 * wanted, 1):
            return False
        path.capacity = 2 * wanted
    path.size = 0
    if name.left > 0 and name.at[0] == c'/':
        folder.left = 0
    if folder.left + name.left > 0 and (
        (folder.at if folder.left > 0 else name.at)[0] == c'/'
    ):
        path.at[0] = c'/'
        path.size = 1
    add_parts(path, folder)
    add_parts(path, name)
    return True


cdef inline span_t span_of_path(const path_t *path) noexcept nogil:
    return span_of(path.at, path.size)


cdef inline span_t folder_of(span_t name) noexcept nogil:
    """Return a name up to its last slash."""
    while name.left > 0 and name.at[name.left - 1] != c'/':
        name.left -= 1
    return name


# Entries of the archive.

cdef inline bint is_symbolic(const links_t *links, size_t link) noexcept nogil:
    return links.names.sizes[link] != 0  # SKIPPED_HARD_LINK is 0


cdef inline size_t link_of(const resolver_t *it, size_t entry) noexcept nogil:
    """Return the link of an entry, or SIZE_MAX for a member."""
    cdef uint64_t place = it.paths.offsets[entry]
    if place < it.members.count:
        return <size_t> -1
    return <size_t> place - it.members.count


cdef inline bint find_target(resolver_t *it, size_t link, size_t *found) noexcept nogil:
    """Find the entry of a link's target among those that are hashed; + 1, or 0."""
    cdef span_t target = name_at(&it.links.targets, <uint32_t> link)
    cdef span_t folder = span_of(target.at, 0)
    cdef uint32_t filling = 0
    cdef uint32_t slot
    if is_symbolic(it.links, link):
        folder = folder_of(name_at(&it.links.names, <uint32_t> link))
    if not set_path(&it.path, folder, target):
        return False
    slot = slots_find(
        &it.by_path, span_of_path(&it.path), name_at, &it.paths, &filling
    )[0]
    found[0] = 0 if slot == 0 else <size_t> slot_entry(&it.by_path, slot) + 1
    return True


cdef inline bint add_entry(resolver_t *it, uint64_t place, span_t name) noexcept nogil:
    """Append an entry, and hash it; of a link find the target before it."""
    cdef size_t entry = it.paths.count
    cdef size_t link
    cdef uint32_t filling = 0
    cdef uint32_t *slot
    if not set_path(&it.path, span_of(name.at, 0), name) or not columns_add(
        &it.paths, place, 0, span_of_path(&it.path)
    ):
        return False
    slot = slots_find(
        &it.by_path, span_of_path(&it.path), name_at, &it.paths, &filling
    )
    if place >= it.members.count:
        link = <size_t> place - it.members.count
        it.followed[link].same = (
            0 if slot[0] == 0 else <size_t> slot_entry(&it.by_path, slot[0]) + 1
        )
        if not is_symbolic(it.links, link):
            if not find_target(it, link, &it.followed[link].target):
                return False
    slot[0] = filling | <uint32_t> (entry + 1)
    return True


cdef inline bint add_entries(resolver_t *it) noexcept nogil:
    """Append all entries, in the order of the archive."""
    cdef size_t member = 0
    cdef size_t link
    for link in range(it.links.names.count):
        while member < it.links.targets.offsets[link]:
            if not add_entry(it, member, name_at(it.members, <uint32_t> member)):
                return False
            member += 1
        if not add_entry(
            it, it.members.count + link, name_at(&it.links.names, <uint32_t> link)
        ):
            return False
    while member < it.members.count:
        if not add_entry(it, member, name_at(it.members, <uint32_t> member)):
            return False
        member += 1
    return True


cdef inline void follow(resolver_t *it, size_t link) noexcept nogil:
    """Set the root of a link and of those on the way; a circle has no root."""
    cdef size_t first = link
    cdef size_t root = ROOT_MISSING
    cdef size_t entry
    while it.followed[link].root == ROOT_UNKNOWN:
        it.followed[link].root = ROOT_VISITED
        if it.followed[link].target == 0:
            break
        entry = it.followed[link].target - 1
        link = link_of(it, entry)
        if link == <size_t> -1:
            root = FIRST_ROOT + entry
            break
    if link != <size_t> -1 and it.followed[link].root >= FIRST_ROOT:
        root = it.followed[link].root
    link = first
    while link != <size_t> -1 and it.followed[link].root == ROOT_VISITED:
        it.followed[link].root = root
        if it.followed[link].target == 0:
            break
        link = link_of(it, it.followed[link].target - 1)


cdef inline size_t root_of(const resolver_t *it, size_t entry) noexcept nogil:
    """Return the root of an entry: of a member itself."""
    cdef size_t link = link_of(it, entry)
    return FIRST_ROOT + entry if link == <size_t> -1 else it.followed[link].root


cdef inline bint repeats(
    const resolver_t *it, size_t entry, size_t link
) noexcept nogil:
    """Return whether a link has the name of its member, or of an equal link before."""
    cdef size_t root = it.followed[link].root
    cdef size_t same = it.followed[link].same
    return (same != 0 and root_of(it, same - 1) == root) or is_equal(
        name_at(&it.paths, <uint32_t> entry),
        name_at(&it.paths, <uint32_t> (root - FIRST_ROOT)),
    )


cdef inline bint find_roots(resolver_t *it) noexcept nogil:
    cdef size_t link
    for link in range(it.links.names.count):
        if it.followed[link].target == 0 and not find_target(
            it, link, &it.followed[link].target
        ):
            return False
    for link in range(it.links.names.count):
        follow(it, link)
    return True


cdef inline bint place_link(
    resolver_t *it, size_t entry, size_t link, columns_t *members, links_t *unread
) noexcept nogil:
    """Append a link to the members, to the unread links, or to neither."""
    cdef link_t *followed = &it.followed[link]
    cdef span_t name = name_at(&it.links.names, <uint32_t> link)
    cdef size_t member
    if followed.root < FIRST_ROOT:
        return links_add(
            unread, members.count, it.links.names.offsets[link],
            <int> it.links.names.sizes[link], name,
            name_at(&it.links.targets, <uint32_t> link),
        )
    if repeats(it, entry, link):
        return True
    member = <size_t> it.paths.offsets[followed.root - FIRST_ROOT]
    return columns_add(
        members, it.members.offsets[member], it.members.sizes[member], name
    )


cdef inline bint merge(
    resolver_t *it, columns_t *members, links_t *unread
) noexcept nogil:
    """Set `members` to those and the links that have roots; `unread` to the others."""
    cdef size_t entry, link, member
    for entry in range(it.count):
        link = link_of(it, entry)
        if link != <size_t> -1:
            if not place_link(it, entry, link, members, unread):
                return False
            continue
        member = <size_t> it.paths.offsets[entry]
        if not columns_add(
            members, it.members.offsets[member], it.members.sizes[member],
            name_at(it.members, <uint32_t> member),
        ):
            return False
    return True


cdef inline bint links_resolve(links_t *links, columns_t *members) noexcept nogil:
    """Move links that lead to members to `members`; keep the others.

    Returns False, and changes nothing, if out of memory.
    """
    cdef resolver_t it
    cdef columns_t merged
    cdef links_t unread
    cdef bint done = False
    if links.names.count == 0:
        return True
    memset(&it, 0, sizeof(it))
    memset(&merged, 0, sizeof(merged))
    memset(&unread, 0, sizeof(unread))
    it.members = members
    it.links = links
    it.count = members.count + links.names.count
    if it.count <= MAX_ENTRIES and slots_init(&it.by_path, it.count):
        it.followed = <link_t *> malloc(links.names.count * sizeof(link_t))
        if it.followed != NULL:
            memset(it.followed, 0, links.names.count * sizeof(link_t))
            done = add_entries(&it) and find_roots(&it) and (
                merge(&it, &merged, &unread)
            )
    columns_free(&it.paths)
    slots_free(&it.by_path)
    free(it.followed)
    free(it.path.at)
    if not done:
        columns_free(&merged)
        links_free(&unread)
        return False
    columns_free(members)
    members[0] = merged
    links_free(links)
    links[0] = unread
    return True
