-- Small table, inner, on an integer
SELECT x.*, small.id4 AS small_id4, small.v2
FROM x
JOIN small ON small.id1 = x.id1;

-- Medium table, inner, on an integer
SELECT x.*, medium.id1 AS medium_id1, medium.id4 AS medium_id4, medium.id5 AS medium_id5, medium.v2
FROM x
JOIN medium ON medium.id2 = x.id2;

-- Medium table, left outer, on an integer
SELECT x.*, medium.id1 AS medium_id1, medium.id4 AS medium_id4, medium.id5 AS medium_id5, medium.v2
FROM x
LEFT JOIN medium ON medium.id2 = x.id2;

-- Medium table, inner, on a string
SELECT x.*, medium.id1 AS medium_id1, medium.id2 AS medium_id2, medium.id4 AS medium_id4, medium.v2
FROM x
JOIN medium ON medium.id5 = x.id5;

-- Big table, inner, on an integer
SELECT
    x.*,
    big.id1 AS big_id1,
    big.id2 AS big_id2,
    big.id4 AS big_id4,
    big.id5 AS big_id5,
    big.id6 AS big_id6,
    big.v2
FROM x
JOIN big ON big.id3 = x.id3;
