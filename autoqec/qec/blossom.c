/* Minimum-weight perfect matching of detection events, to each other or to the boundary, in polynomial time.
 *
 * The primal-dual method of Edmonds (Canad. J. Math. 17, 449, 1965). Each vertex (a detection event) has a radius, the
 * sum of its dual variable and those of the blossoms that hold it. A radius stays within the distance to the boundary,
 * and those of a pair in different blossoms sum to at most their distance. Vertices are inserted one by one: an
 * alternating tree grows from the new one until it reaches the boundary, or a vertex that is matched to it. Then one more
 * vertex is matched, at a cost that equals the growth. So that trees stay small, a ceiling takes the place of the
 * boundary if it is lower; vertices that are left at the ceiling grow on when it is raised.
 *
 * weighted_mwpm.c includes this file. It gives the distances of pairs in advance, or finds them (`widen`) when the
 * radius of a vertex exceeds the distance within which its pairs are known.
 */
#define OUTER 1 /* labels are the sign with which radii in the tree change */
#define INNER (-1)
#define UNMATCHED (-1) /* the root; else a half-edge, or TO_BOUNDARY(vertex) */
#define TO_BOUNDARY(v) (-2 - (v))
#define ROUNDING 1e-9 /* of the first ceiling: a step of the search that is due later than planned by more is put off */

/* One direction of a pair; the other has number h ^ 1. */
typedef struct {
    double cost;
    int32_t to, next; /* next half-edge of the same vertex, or -1 */
} Half;

/* A vertex, or a blossom: an odd cycle of nodes. Top-level nodes are those in no blossom. */
typedef struct {
    double dual;          /* radius of a vertex, dual variable of a blossom, less label * time while in the tree */
    double bound, known;  /* vertex: distance to the boundary (if within `known`), and within which pairs are known */
    int32_t label, mate;
    int32_t from;         /* inner: half-edge from the tree to this node */
    int32_t top;          /* vertex: its top-level node */
    int32_t halves;       /* vertex: its first half-edge, or -1 */
    int32_t first, last, next; /* vertices of a node: from first by next to last */
    int32_t child;        /* blossom: one node of the cycle */
    int32_t right, left, along; /* in a cycle: neighbours, and the half-edge to the right one */
    int32_t mark, inside; /* inside: whether it is in a blossom */
} Node;

typedef struct {
    double time;
    int32_t what; /* half-edge; ~x for a node x: to know more pairs of a vertex, or to expand a blossom */
} Step;

typedef struct Blossoms {
    int32_t n, capacity;      /* vertices so far, and at most; blossoms are nodes from `capacity` on */
    Node *node;
    Half *half;
    int32_t halves, half_capacity;
    Step *heap;
    int32_t steps, step_capacity;
    int32_t blossoms, *spare, spares; /* numbers of blossoms given so far, and those unused again */
    int32_t *touched, touches, touch_capacity; /* nodes that got a label */
    double ceiling;           /* of radii */
    double rounding;          /* far above the errors of sums of weights, and far below typical differences */
    double time, limit;       /* of the growing tree; when it ends, as far as is known */
    int32_t end;              /* how it ends: a half-edge, or ~vertex for the boundary */
    int32_t stamp;
    int64_t work, most_work;  /* half-edges looked at, a deterministic measure of time */
    int failed;               /* out of memory, or beyond most_work */
    int (*widen)(struct Blossoms *, int32_t vertex); /* raises `known`; NULL if all pairs are known */
    void *context;
} Blossoms;

static void *grown(Blossoms *b, void *array, int32_t *capacity, size_t size) {
    void *larger = *capacity < INT32_MAX / 4 ? realloc(array, (size_t)*capacity * 2 * size) : NULL;
    if (!larger) {
        b->failed = 1;
        return array;
    }
    *capacity *= 2;
    return larger;
}

static void release_blossoms(Blossoms *b) { free(b->node), free(b->half), free(b->heap), free(b->spare), free(b->touched); }

/* Reserve memory for up to `vertices`; 0 if there is none. */
static int reserve_blossoms(Blossoms *b, int32_t vertices) {
    memset(b, 0, sizeof *b);
    b->capacity = vertices;
    b->half_capacity = b->step_capacity = b->touch_capacity = 1024;
    b->node = malloc(sizeof(Node) * (2 * (size_t)vertices + 2));
    b->half = malloc(sizeof(Half) * (size_t)b->half_capacity);
    b->heap = malloc(sizeof(Step) * (size_t)b->step_capacity);
    b->spare = malloc(sizeof(int32_t) * ((size_t)vertices + 2));
    b->touched = malloc(sizeof(int32_t) * (size_t)b->touch_capacity);
    return b->node && b->half && b->heap && b->spare && b->touched;
}

/* Start with a ceiling that is a typical radius. */
static void clear_blossoms(Blossoms *b, int64_t most_work, double ceiling) {
    b->n = b->halves = b->blossoms = b->spares = b->stamp = 0;
    b->work = b->failed = 0;
    b->most_work = most_work;
    b->limit = FAR;
    b->ceiling = ceiling;
    b->rounding = ROUNDING * ceiling;
}

/* Add a vertex without pairs; it takes part in the matching from `insert` on. */
static int32_t add_vertex(Blossoms *b, double bound, double known) {
    int32_t v = b->n++;
    b->node[v] = (Node){.bound = bound, .known = known, .top = v, .first = v, .last = v, .halves = -1, .mate = UNMATCHED};
    return v;
}

/* Add a pair of vertices, and return its first half-edge, that of `u`. */
static int32_t add_pair(Blossoms *b, int32_t u, int32_t v, double cost) {
    if (b->halves + 2 > b->half_capacity) b->half = grown(b, b->half, &b->half_capacity, sizeof(Half));
    if (b->failed) return 0;
    int32_t h = b->halves;
    b->halves += 2;
    b->half[h] = (Half){cost, v, b->node[u].halves};
    b->half[h + 1] = (Half){cost, u, b->node[v].halves};
    b->node[u].halves = h, b->node[v].halves = h + 1;
    return h;
}

static int32_t tail(const Blossoms *b, int32_t half) { return b->half[half ^ 1].to; }

static void schedule(Blossoms *b, double time, int32_t what) {
    if (time >= b->limit) return;
    if (b->steps == b->step_capacity) b->heap = grown(b, b->heap, &b->step_capacity, sizeof(Step));
    if (b->failed) return;
    int32_t here = b->steps++;
    while (here > 0) {
        int32_t up = (here - 1) / 2;
        if (b->heap[up].time <= time) break;
        b->heap[here] = b->heap[up];
        here = up;
    }
    b->heap[here] = (Step){time, what};
}

static Step next_step(Blossoms *b) {
    Step first = b->heap[0], last = b->heap[--b->steps];
    int32_t here = 0, down;
    while ((down = 2 * here + 1) < b->steps) {
        if (down + 1 < b->steps && b->heap[down + 1].time < b->heap[down].time) down++;
        if (b->heap[down].time >= last.time) break;
        b->heap[here] = b->heap[down];
        here = down;
    }
    b->heap[here] = last;
    return first;
}

static void end_at(Blossoms *b, double time, int32_t end) {
    if (time >= b->limit) return;
    b->limit = time;
    b->end = end;
}

/* When the half-edge of an outer vertex becomes tight; FAR if it does not, as labels are now. */
static double time_of(const Blossoms *b, int32_t half) {
    const Node *u = b->node + tail(b, half), *v = b->node + b->half[half].to;
    const Node *x = b->node + u->top, *y = b->node + v->top;
    if (x == y || x->label + y->label <= 0) return FAR;
    double slack = b->half[half].cost - u->dual - v->dual;
    return x->label == y->label ? slack / 2 : slack;
}

/* Schedule a half-edge, or note that it ends the tree. */
static void consider(Blossoms *b, int32_t half) {
    double time = time_of(b, half);
    if (time >= b->limit) return;
    const Node *y = b->node + b->node[b->half[half].to].top;
    if (y->label == 0 && y->mate < UNMATCHED)
        end_at(b, time, half);
    else
        schedule(b, time, half);
}

/* Schedule all that a vertex, which just became outer, may reach. */
static void scan(Blossoms *b, int32_t v) {
    const Node *node = b->node + v;
    double bound = node->bound < b->ceiling ? node->bound : b->ceiling;
    end_at(b, bound - node->dual, ~v);
    if (node->known < bound) schedule(b, node->known - node->dual, ~v);
    for (int32_t h = node->halves; h >= 0; h = b->half[h].next) {
        b->work++;
        if (b->half[h].to < b->n) consider(b, h);
    }
}

static void set_label(Blossoms *b, int32_t x, int32_t label) {
    Node *node = b->node + x;
    double change = (node->label - label) * b->time;
    if (node->label == 0) {
        if (b->touches == b->touch_capacity) b->touched = grown(b, b->touched, &b->touch_capacity, sizeof(int32_t));
        if (b->failed) return;
        b->touched[b->touches++] = x;
    }
    node->label = label;
    if (x >= b->capacity) node->dual += change;
    for (int32_t v = node->first;; v = b->node[v].next) {
        b->node[v].dual += change;
        if (v == node->last) break;
    }
}

static void set_top(Blossoms *b, int32_t x, int32_t top) {
    for (int32_t v = b->node[x].first;; v = b->node[v].next) {
        b->node[v].top = top;
        if (v == b->node[x].last) break;
    }
}

static void scan_all(Blossoms *b, int32_t x) {
    for (int32_t v = b->node[x].first;; v = b->node[v].next) {
        scan(b, v);
        if (v == b->node[x].last) break;
    }
}

static void make_inner(Blossoms *b, int32_t x, int32_t from) {
    b->node[x].from = from;
    set_label(b, x, INNER);
    if (x >= b->capacity) schedule(b, b->node[x].dual, ~x);
}

/* The inner node above an outer one in the tree, or -1, and the outer node above an inner one. */
static int32_t above_outer(const Blossoms *b, int32_t x) {
    int32_t mate = b->node[x].mate;
    return mate == UNMATCHED ? -1 : b->node[b->half[mate].to].top;
}

static int32_t above_inner(const Blossoms *b, int32_t x) { return b->node[tail(b, b->node[x].from)].top; }

static int32_t common_ancestor(Blossoms *b, int32_t x, int32_t y) {
    b->stamp++;
    for (;;) {
        if (x >= 0) {
            if (b->node[x].mark == b->stamp) return x;
            b->node[x].mark = b->stamp;
            int32_t inner = above_outer(b, x);
            x = inner < 0 ? -1 : above_inner(b, inner);
        }
        int32_t swap = x;
        x = y, y = swap;
    }
}

static void link_right(Blossoms *b, int32_t x, int32_t y, int32_t along) {
    b->node[x].right = y, b->node[x].along = along;
    b->node[y].left = x;
}

/* Unite the cycle that a tight half-edge between two outer nodes closes. */
static void make_blossom(Blossoms *b, int32_t half) {
    int32_t x = b->node[tail(b, half)].top, y = b->node[b->half[half].to].top, root = common_ancestor(b, x, y);
    link_right(b, x, y, half);
    for (int32_t here = x; here != root;) {
        int32_t inner = above_outer(b, here), outer = above_inner(b, inner);
        link_right(b, inner, here, b->node[here].mate ^ 1);
        link_right(b, outer, inner, b->node[inner].from);
        here = outer;
    }
    for (int32_t here = y; here != root;) {
        int32_t inner = above_outer(b, here), outer = above_inner(b, inner);
        link_right(b, here, inner, b->node[here].mate);
        link_right(b, inner, outer, b->node[inner].from ^ 1);
        here = outer;
    }
    int32_t blossom = b->spares > 0 ? b->spare[--b->spares] : b->capacity + b->blossoms++;
    Node *node = b->node + blossom;
    *node = (Node){.mate = b->node[root].mate, .child = root, .first = b->node[root].first};
    int32_t last = -1, here = root;
    do {
        Node *child = b->node + here;
        int32_t was_inner = child->label == INNER;
        set_label(b, here, 0);
        child->inside = 1 + was_inner;
        if (last >= 0) b->node[last].next = child->first;
        last = child->last;
        set_top(b, here, blossom);
        here = child->right;
    } while (here != root);
    node->last = last;
    set_label(b, blossom, OUTER);
    here = root;
    do {
        if (b->node[here].inside == 2) scan_all(b, here);
        here = b->node[here].right;
    } while (here != root);
}

/* Match the nodes of a cycle: the one that holds the vertex by which the blossom is matched as the blossom, the others
 * in pairs along the cycle. Returns that node. Vertices must have their nodes of the cycle as `top`. */
static int32_t match_cycle(Blossoms *b, int32_t blossom) {
    int32_t mate = b->node[blossom].mate, base = b->node[mate >= 0 ? tail(b, mate) : -2 - mate].top;
    b->node[base].mate = mate;
    for (int32_t x = b->node[base].right; x != base;) {
        int32_t y = b->node[x].right, along = b->node[x].along;
        b->node[x].mate = along, b->node[y].mate = along ^ 1;
        x = b->node[y].right;
    }
    return base;
}

static void dissolve(Blossoms *b, int32_t blossom) {
    int32_t x = b->node[blossom].child;
    do {
        b->node[x].inside = 0;
        set_top(b, x, x);
        x = b->node[x].right;
    } while (x != b->node[blossom].child);
}

/* Expand an inner blossom whose dual variable is 0: an even path of its nodes stays in the tree. */
static void expand(Blossoms *b, int32_t blossom) {
    int32_t from = b->node[blossom].from, child = b->node[blossom].child;
    set_label(b, blossom, 0);
    dissolve(b, blossom);
    b->node[blossom].inside = 1; /* unused */
    int32_t base = match_cycle(b, blossom), x = b->node[b->half[from].to].top;
    b->spare[b->spares++] = blossom;
    int to_right = x != base && b->node[b->half[b->node[x].mate].to].top == b->node[x].right;
    make_inner(b, x, from);
    while (x != base) {
        int32_t outer = to_right ? b->node[x].right : b->node[x].left;
        set_label(b, outer, OUTER);
        x = to_right ? b->node[outer].right : b->node[outer].left;
        make_inner(b, x, to_right ? b->node[outer].along : b->node[x].along ^ 1);
    }
    x = child;
    do {
        if (b->node[x].label == OUTER) scan_all(b, x);
        for (int32_t v = b->node[x].first; b->node[x].label == 0; v = b->node[v].next) {
            for (int32_t h = b->node[v].halves; h >= 0; h = b->half[h].next) {
                b->work++;
                if (b->half[h].to < b->n) consider(b, h ^ 1); /* from outer vertices to this one */
            }
            if (v == b->node[x].last) break;
        }
        x = b->node[x].right;
    } while (x != child);
}

/* Exchange matched and unmatched half-edges on the path from the root to where the tree ended. */
static void augment(Blossoms *b) {
    int32_t end = b->end, mate = end < 0 ? TO_BOUNDARY(~end) : end, x = b->node[end < 0 ? ~end : tail(b, end)].top;
    if (end >= 0) b->node[b->node[b->half[end].to].top].mate = end ^ 1;
    for (;;) {
        int32_t old = b->node[x].mate;
        b->node[x].mate = mate;
        if (old == UNMATCHED) return;
        int32_t inner = b->node[b->half[old].to].top;
        mate = b->node[inner].from;
        b->node[inner].mate = mate ^ 1;
        x = b->node[tail(b, mate)].top;
    }
}

/* Do what is due at the time of a step. */
static void advance(Blossoms *b, Step step) {
    if (step.what < 0) {
        int32_t x = ~step.what;
        Node *node = b->node + x;
        if (x >= b->capacity) {
            if (node->inside || node->label != INNER) return;
            if (node->dual > step.time + b->rounding)
                schedule(b, node->dual, step.what);
            else
                expand(b, x);
        } else if (node->known < node->bound && node->known - node->dual <= step.time + b->rounding) {
            if (!b->widen(b, x)) b->failed = 1;
            if (!b->failed) scan(b, x);
        }
        return;
    }
    double time = time_of(b, step.what);
    if (time > step.time + b->rounding) {
        if (time < FAR) consider(b, step.what);
        return;
    }
    int32_t y = b->node[b->half[step.what].to].top;
    if (b->node[y].label == OUTER) {
        make_blossom(b, step.what);
        return;
    }
    if (b->node[y].mate < UNMATCHED) {
        end_at(b, time, step.what);
        return;
    }
    make_inner(b, y, step.what);
    int32_t outer = above_outer(b, y);
    set_label(b, outer, OUTER);
    scan_all(b, outer);
}

/* Grow a tree from an unmatched node, until it is matched. Returns the time; FAR if there is no partner. */
static double grow(Blossoms *b, int32_t root) {
    b->time = 0, b->limit = FAR;
    b->steps = b->touches = 0;
    b->node[root].mate = UNMATCHED;
    set_label(b, root, OUTER);
    scan_all(b, root);
    while (!b->failed && b->steps > 0 && b->heap[0].time < b->limit) {
        Step step = next_step(b);
        if (step.time > b->time) b->time = step.time;
        if (++b->work > b->most_work) b->failed = 1;
        advance(b, step);
    }
    if (b->failed || b->limit == FAR) return FAR;
    if (b->limit > b->time) b->time = b->limit;
    augment(b);
    for (int32_t i = 0; i < b->touches; i++) {
        int32_t x = b->touched[i];
        if (!b->node[x].inside && b->node[x].label != 0) set_label(b, x, 0);
    }
    return b->time;
}

/* Match one more vertex, v < b->n. Returns by how much the total weight grows; FAR if it has no partner. Sets b->failed
 * if memory or work does not suffice. */
static double insert(Blossoms *b, int32_t v) {
    Node *node = b->node + v;
    double start = node->bound < node->known ? node->bound : node->known;
    if (b->ceiling < start) start = b->ceiling;
    for (int32_t h = node->halves; h >= 0; h = b->half[h].next) {
        b->work++;
        int32_t u = b->half[h].to;
        if (u < v && b->half[h].cost - b->node[u].dual < start) start = b->half[h].cost - b->node[u].dual;
    }
    int32_t vertices = b->n;
    b->n = v + 1; /* later ones do not take part yet */
    node->dual = start;
    double time = grow(b, v);
    b->n = vertices;
    return time < FAR ? start + time : FAR;
}

/* Raise the ceiling until every vertex is matched to another or to the boundary; 0 if some can't be. */
static int lift(Blossoms *b) {
    for (int left = 1; left;) {
        double before = b->ceiling;
        b->ceiling *= 2, left = 0;
        for (int32_t v = 0; v < b->n; v++) {
            const Node *node = b->node + v;
            if (b->node[node->top].mate != TO_BOUNDARY(v) || node->bound <= before) continue;
            if (node->dual < before * 1.5 && grow(b, node->top) == FAR) return 0; /* those at the new ceiling wait */
            left = 1;
        }
    }
    b->ceiling = FAR;
    return 1;
}

/* Give all vertices their mates; no vertex can be inserted afterwards. */
static void resolve(Blossoms *b) {
    for (int32_t v = 0; v < b->n; v++)
        while (b->node[v].top != v) {
            int32_t blossom = b->node[v].top;
            dissolve(b, blossom);
            match_cycle(b, blossom);
        }
}
